"""What a failed check raises."""

from kdnb.errors import KdnbError


class CheckFailed(KdnbError, AssertionError):
    """A drafter, policy, rule or backend broke its contract; the message says which part, and where."""
