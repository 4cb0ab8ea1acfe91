"""Workers: where producers, consumers, scans and mirrors run, and how they are supervised.

    driver                                             worker (a process, or a Spark task)
    WorkerSupervisor ─ supervision (pure) ─ placement ──► main ─ WorkerControl ─ workload, mirror
        └─ ControlServer ◄─────────── lease, commits, progress ────────┘

The supervisor does not depend on Spark: a placement starts and ends workers somewhere, and
everything else happens over the control channel.
"""
