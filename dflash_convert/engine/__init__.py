"""llama.cpp, run beside this program and never inside it: it aborts its process on a failed assertion.

Two engines answer the same HTTP requests on the loopback interface, behind a random API key:

- *embedded*: the ``xllamacpp`` package in a child process (:mod:`dflash_convert.engine.worker`);
- *llama-server*: a program found by option, environment variable or PATH.

:func:`dflash_convert.engine.session.start` launches either and gives a :class:`Session`; every request
answers with one :class:`~dflash_convert.engine.trace.Trace`.
"""
