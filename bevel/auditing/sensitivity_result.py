"""What a check of the sensitivity found, and its text."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class SumMovement:
    """How far one unit moved the clipped sum, at most, in one case.

    Attributes:
      case: what was done with the data, in words.
      moved: the largest distance between two sums, as a multiple of what is allowed without
        rounding: the bound for a unit that is removed, and twice the bound for one that is
        replaced. Infinity if a sum was not finite.
      parameter: the parameter whose sum moved the most.
      group: the part of the sum with a bound of its own in which this was measured.
    """

    case: str
    moved: float
    parameter: str
    group: str


@dataclasses.dataclass(frozen=True)
class SensitivityResult:
    """The result of `bevel.auditing.check_sensitivity`.

    Attributes:
      bound: the most that one unit may contribute to the clipped sum, in L2 norm. The noise of the
        plan is scaled to it.
      rounding: what floating-point rounding may add to a difference of two sums, as a multiple of
        the bound. It is proven for every order of summation, and far above what usually occurs.
      movements: one for each case.
      not_checked: what this check would not notice, in words.
      unit: "example" or "user".
    """

    bound: float
    rounding: float
    movements: tuple[SumMovement, ...]
    not_checked: tuple[str, ...] = ()
    unit: str = "example"

    @property
    def moved(self) -> float:
        """The largest movement of all cases, as a multiple of the bound."""
        return max(movement.moved for movement in self.movements)

    @property
    def passed(self) -> bool:
        """False if one unit contributed more than its bound. True does not prove the bound."""
        return self.moved <= 1 + self.rounding

    def __str__(self) -> str:
        verdict = f"PASSED: no {self.unit} contributed more than its bound to a clipped sum"
        if not self.passed:
            verdict = f"FAILED: one {self.unit} contributes more than the noise is made for"
        lines = [
            f"sensitivity {verdict}",
            f"  bound         {self.bound:.3g}, and {self.rounding:.2g} of it for rounding",
        ]
        for name, movement in zip(
            ["moved", *[""] * len(self.movements)], self.movements, strict=False
        ):
            text = f"{movement.moved:.3f} of the bound: {movement.case}"
            if movement.moved > 1 + self.rounding:
                text += f"; most of it in {movement.parameter} ({movement.group})"
            lines.append(f"  {name:<14}{text}")
        for name, text in zip(["not checked", *[""] * 9], self.not_checked, strict=False):
            lines.append(f"  {name:<14}{text}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, object]:
        """The result in plain numbers, lists and text, for JSON."""
        return {"passed": self.passed, "moved": self.moved} | dataclasses.asdict(self)
