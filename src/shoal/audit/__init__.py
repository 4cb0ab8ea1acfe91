"""The judge: what happened to every message, from the ledgers of a run.

    run_file  run.json, and which values of it an audit accepts
    read/     run folders, commit logs and row groups into arrays; only this touches a disk
    context   what every task must know: promises, scans, positions, drained lanes
    plan      tasks cut from the ledgers' metadata, each a bounded piece of work
    rules/    the kernels: cells, groups, loss, order, offsets, polls, fidelity
    times/    latencies, clocks, windows of faults
    parts     what a kernel hands back: named arrays of integers
    audit     the rounds of tasks; result/ makes a result of their parts

Kernels are pure: arrays in, parts out. A task is judged alone, in any order, on any machine;
parts are merged by sums, minima and maxima of integers, so that a result does not depend on
how the work was cut or in which order it came back.
"""
