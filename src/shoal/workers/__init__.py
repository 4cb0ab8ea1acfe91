"""Workers: where producers, consumers, scans and mirror hosts run, and who watches over them.

    driver                                         worker (a process, or a Spark task)
    Supervisor ── supervision (pure) ── placement ──► main ── WorkerControl ── workload, mirror
        └─ ControlServer ◄──────── lease, commits, progress ────────┘

The supervisor knows no Spark: a placement starts and ends workers somewhere, and everything
else happens over the control channel.
"""
