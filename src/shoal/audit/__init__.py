"""The judge: what happened to every message, from the ledgers of a run.

    read/     reads run folders, commit logs and row groups into arrays; only this touches a disk
    context   what every task must know: promises, scans, positions, drained lanes
    plan      cuts tasks from the metadata of the ledgers; each is a bounded amount of work
    rules/    the kernels: cells, groups, loss, order, offsets, polls, fidelity
    times/    latencies, clocks, windows of faults
    parts     what a kernel returns: arrays of integers of a kind; columns names their columns
    stages    the stages of a run, and the keys that attribute findings to them
    audit     runs the tasks in rounds; result/ turns their parts into a result

Kernels are pure: arrays in, parts out. Each task is judged separately, in any order, on any
machine. Parts are merged by sums, minima and maxima of integers, so a result does not depend on
how the work was cut or on the order in which it came back.
"""
