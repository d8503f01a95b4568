"""From the GPU instances that a card has to those that its layout wants: the fewest steps, and what has to wait.

What is wanted and there is never touched. What a program may use is kept; what is wanted in its place waits.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tessera.core.mig.geometry import Product
from tessera.core.mig.placement import Instance, within_limits


@dataclass(frozen=True, slots=True)
class GpuInstance:
    """A GPU instance on a card."""

    id: int
    instance: Instance
    computes: tuple[int, ...] = (0,)  # its compute instances, each a MIG device
    whole: bool = True  # whether it has one that takes all of it: that is the device that a layout means


@dataclass(frozen=True, slots=True)
class Cut:
    """How a card is, or is to be, cut."""

    instances: tuple[Instance, ...] = ()
    mig: bool = True  # whether MIG mode is on


@dataclass(frozen=True, slots=True)
class Steps:
    destroy: tuple[GpuInstance, ...] = ()
    complete: tuple[GpuInstance, ...] = ()  # in the right place; its compute instances are made again
    create: tuple[Instance, ...] = ()
    waiting: tuple[Instance, ...] = ()  # wanted, and not to be had beside what is kept

    def __bool__(self) -> bool:
        """Whether there is something to do now."""
        return bool(self.destroy or self.complete or self.create)


def steps(
    product: Product, made: Sequence[GpuInstance], wanted: Sequence[Instance], kept: Collection[int] = ()
) -> Steps:
    """What leads to the wanted instances; GPU instances of these numbers are kept, wanted or not."""
    goal = frozenset(wanted)
    stay = [one for one in made if one.id in kept or one.instance in goal]
    lacking = [one for one in stay if one.instance in goal and not one.whole]
    shapes = [shape for one in stay if (shape := product.shape(one.instance.profile))]
    taken = sum({one.instance.mask for one in stay})
    there = {one.instance for one in stay}
    create: list[Instance] = []
    waiting = [one.instance for one in lacking if one.id in kept]
    for instance in wanted:
        if instance in there:
            continue
        shape = product.shape(instance.profile)
        if shape is None or instance.mask & taken or not within_limits(product, [*shapes, shape]):
            waiting.append(instance)
        else:
            create.append(instance)
            shapes.append(shape)
    return Steps(
        tuple(one for one in made if one not in stay),
        tuple(one for one in lacking if one.id not in kept),
        tuple(create),
        tuple(waiting),
    )
