"""``dataloader bench TARGET``: what loading costs in the user's own job, what bounds it, and what to set.

    target    finds the object           "train.py:dataset"  -->  a dataset or a loader
    subject   makes loaders of it        with any number of workers, probed or plain
    probe     goes into a worker         writes down each sample and each batch as it is made
    measure   runs the loaders           within the time that was given
    figures   what was measured          from the probe's notes and the clock
    verdict   what follows from that     pure: no clock, no process
    report, plot                         for people and for programs

The user's samples are loaded in workers, so that one which crashes is explained; in this process only at the
end, for ``num_workers=0``. Non-goals: comparing loaders (see benchmarks/), measuring the user's own loop.
"""
