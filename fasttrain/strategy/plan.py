"""How gradients travel between ranks: the choices that can be tuned, as plain values. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

MIB = 1 << 20

# What the first and the last bucket may hold of a bucket's size: the first one starts early, and nothing hides
# the last one's way. DDP's own first bucket is 1 MiB of 25.
EDGE_FRAC = 0.25

WIRE_DTYPES = ("none", "bf16", "fp16")


@dataclass(frozen=True)
class CommPlan:
    """One way of reducing the gradients of a step. The default is stock DDP.

    Attributes:
        bucket_mb: Size of DDP's buckets, MiB; None for DDP's own (25, the first 1).
        join_mb: The hook joins successive buckets until they hold so much, MiB; 0 joins none.
        streams: Process groups over which the parts of a bucket are dealt.
        split_mb: Largest part, MiB; 0 for equal parts, one a stream.
        hierarchical: Reduce inside each node first, then across nodes, then spread inside each node.
        wire: Type on the wire, one of WIRE_DTYPES; all but ``none`` lose digits.
        lean: Gradients are views of DDP's buckets, and copies into them are batched where torch can.
    """

    bucket_mb: float | None = None
    join_mb: float = 0.0
    streams: int = 1
    split_mb: float = 0.0
    hierarchical: bool = False
    wire: str = "none"
    lean: bool = False

    @property
    def uses_hook(self) -> bool:
        """Whether DDP's own all-reduce does not do."""
        return self.streams > 1 or self.join_mb > 0 or self.split_mb > 0 or self.hierarchical or self.wire != "none"

    @property
    def wrapping(self) -> tuple[float | None, bool, bool]:
        """What DDP is told when it is built; plans that differ in this need another build."""
        return self.bucket_mb, self.lean, self.uses_hook

    def without_rebuild(self) -> CommPlan:
        """The same for a DDP object that cannot be built anew: the hook joins the buckets that there are."""
        return replace(self, bucket_mb=None, join_mb=self.bucket_mb or self.join_mb, lean=False)

    def __str__(self) -> str:
        if self == STOCK:
            return "stock DDP"
        words = [f"buckets of {self.bucket_mb:g} MiB" if self.bucket_mb is not None else "DDP's own buckets"]
        if self.join_mb:
            words.append(f"joined to {self.join_mb:g} MiB")
        if self.streams > 1:
            words.append(f"{self.streams} streams")
        if self.split_mb:
            words.append(f"parts of {self.split_mb:g} MiB")
        if self.hierarchical:
            words.append("node by node")
        if self.wire != "none":
            words.append(f"{self.wire} on the wire")
        return ", ".join(words)

    def to_dict(self) -> dict[str, Any]:
        """Plain types, for a checkpoint or a file."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> CommPlan:
        """The plan that ``to_dict`` wrote.

        Raises:
            ValueError: It holds what no plan has.
        """
        try:
            return cls(**values)
        except TypeError as error:
            raise ValueError(f"not a communication plan: {dict(values)}") from error


STOCK = CommPlan()


def bucket_caps_mb(sizes: Sequence[int], bucket_mb: float) -> list[float]:
    """Caps of DDP's buckets, MiB, in the order in which they are sent; the last one repeats.

    DDP closes a bucket with the parameter that reaches its cap, so a large parameter is a bucket of its own, and a
    cap that equals a bucket's bytes ends it just there.

    Args:
        sizes: Bytes of the parameters in the order in which their gradients become ready.
        bucket_mb: Of a full bucket, MiB.
    """
    full, edge = bucket_mb * MIB, bucket_mb * EDGE_FRAC * MIB
    tail, first_of_tail = 0, len(sizes)
    while first_of_tail > 0 and tail < edge:
        first_of_tail -= 1
        tail += sizes[first_of_tail]
    caps: list[float] = []
    filled = 0
    for size in sizes[:first_of_tail]:
        filled += size
        if filled >= (full if caps else edge):
            caps.append(filled / MIB)
            filled = 0
    if filled:
        caps.append(filled / MIB)
    return [*caps, tail / MIB]
