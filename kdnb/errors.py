"""Every error kdnb raises on purpose.

One sentence each: what was wrong with which name, expected and got with numbers, and what to do.
The command line prints them without a traceback and exits with status 2.
"""


class KdnbError(Exception):
    """Base of all errors that a caller can cause and mend."""


class ConfigError(KdnbError, ValueError):
    """A config file or an argument has a value that cannot be used."""


class CheckpointError(KdnbError, ValueError):
    """A checkpoint's files are missing, damaged, or do not fit its config."""


class ShapeError(KdnbError, ValueError):
    """An array has the wrong shape or dtype."""


class TokenError(KdnbError, ValueError):
    """A prompt or token id cannot be used with this vocabulary or tokenizer."""


class CapacityError(KdnbError, RuntimeError):
    """A cache has no room for the rows asked for."""


class DrafterError(KdnbError, ValueError):
    """A drafter does not fit its target, or broke the Drafter contract."""


class PolicyError(KdnbError, ValueError):
    """A tree policy returned a tree that breaks the TreePolicy contract."""


class VerifyRuleError(KdnbError, ValueError):
    """A verify rule returned an acceptance that breaks the VerifyRule contract."""


class BackendUnavailable(KdnbError, RuntimeError):
    """The backend asked for cannot run on this machine; the message says what is missing."""


class TraceError(KdnbError, ValueError):
    """A trace file cannot be read, or two traces cannot be compared."""


class KernelError(KdnbError, RuntimeError):
    """A kernel does not compile, or broke a rule while it ran; the message shows where."""
