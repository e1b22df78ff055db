"""The bucket of a latency, by whole numbers alone."""

from holdfast.pipeline.latency import PER_OCTAVE


def bucket_of(latency: int) -> int:
    """The bucket of a latency in µs; anything under one counts as one."""
    return int(max(1, latency) ** PER_OCTAVE).bit_length() - 1
