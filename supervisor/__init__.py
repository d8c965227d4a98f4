"""Supervised worker processes: a pool whose dead are found, explained and replaced.

Import from the submodules, as in ``from supervisor.pool import WorkerPool``: another package on PyPI is
called ``supervisor`` too, and when both are installed this file may be the other one's.

=============  ==========================================================================
pool           the consumer's side: start workers, talk to them, hear of deaths
pool_worker    one worker as the consumer sees it
waiting        what the consumer waits for
loop           the supervisor process: one thread that owns the workers
child          what happens in a worker process around the user's function
launch         how supervisor and worker processes come to be: fork or a fresh interpreter
policy         how often the dead may be replaced
verdict        why a worker ended
report         its end, told to people
inspection     what the supervisor looks at in its workers: memory, and how long they take
hang           how long a worker has been at one task
oom            out-of-memory kills: readings and evidence (memory_cgroup, kernel_log, own_cgroups)
page           the shared memory in which a worker says where it is
channel        whole messages and descriptors between two processes
messages       what the consumer and the supervisor tell each other
payload        Python objects on their way into fresh processes
sharing        values in them that processes share, and are never copied
mapped_files   memory-mapped arrays in them, which travel by the name of their file
exceptions     exceptions on their way between processes
memory         memory readings
relay          what workers write to standard error
revival        what follows when the supervisor dies
worker         one worker as the supervisor sees it
handle         the supervisor as the consumer holds it
stopping       when a worker that was asked to end is made to
linux          system calls that some Python builds lack
=============  ==========================================================================
"""
