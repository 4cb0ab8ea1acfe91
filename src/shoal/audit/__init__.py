"""The judge: what happened to every message, from the ledgers of a run.

    run_file  run.json, and which values of it an audit accepts
    folder    the commit log and the footers of committed segments
    setting   what every task must know: promises, scans, positions, drained lanes
    plan      tasks cut from the ledgers' metadata, each a bounded piece of work
    read      row groups into arrays; with `run_file` and `folder` the only files that touch a disk
    index, evidence, order, loss, latency, cell, walk, offsets     the kernels
    parts     what a kernel hands back: named arrays of integers
    merge, judge, verdict, witness    from parts to a result

Kernels are pure: arrays in, parts out. A task is judged alone, in any order, on any machine;
parts are merged by sums, minima and maxima of integers, so that a result does not depend on
how the work was cut or in which order it came back.
"""
