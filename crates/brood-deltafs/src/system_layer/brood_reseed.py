"""Gives random generators fresh seeds in every fork of a Brood sandbox.

Siblings go on from one frozen state, generators included: without this they would draw the same
numbers. A fork that comes to life is told by SIGURG, which programs that know nothing of it ignore.
The kernel's own generator (os.urandom, secrets, uuid.uuid4) needs no help.

Generators that a program made and seeded itself are left alone; register() is for those.
"""

import os
import signal
import sys

_hooks = []


def register(hook):
    """Has hook() called in every fork, after the generators of the standard library."""
    _hooks.append(hook)


def reseed():
    """Gives every generator that this process has loaded a fresh seed."""
    modules = sys.modules
    if "random" in modules:
        modules["random"].seed()
    if "numpy.random" in modules:
        modules["numpy.random"].seed()
    if "uuid" in modules:
        # As RFC 9562 has it for hosts without an address of their own: random, with the multicast bit.
        modules["uuid"]._node = int.from_bytes(os.urandom(6), "big") | 1 << 40
        modules["uuid"]._last_timestamp = None
        modules["uuid"]._generate_time_safe = None
    if "ssl" in modules:
        modules["ssl"].RAND_add(os.urandom(48), 48.0)
    if "tempfile" in modules:
        modules["tempfile"]._name_sequence = None
    for hook in _hooks:
        hook()


def install():
    """Reseeds whenever this process finds itself in a fork."""
    try:
        signal.signal(signal.SIGURG, lambda number, frame: reseed())
    except ValueError:
        # Not the main thread, or not the main interpreter: somebody else's to install.
        pass
