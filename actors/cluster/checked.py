"""What every spec has in common: it checks its fields when it is made, and is plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, ClassVar, Self

from actors.config import Rule, Settings, mapping, refuse_unknown
from actors.errors import SpecError
from actors.kernel.ref import Ref, write_argument


class Checked:
    """Checks the fields of a spec by the rules of its class, in Python and out of a table alike."""

    _RULES: ClassVar[Mapping[str, Rule]]

    def __post_init__(self) -> None:
        where = type(self).__name__
        for name, rule in self._RULES.items():
            object.__setattr__(self, name, rule(getattr(self, name), f"{where}.{name}"))
        self._check(where)

    def _check(self, where: str) -> None:
        """What no field shows alone: the process that an actor placed here lives in is not ours."""
        if getattr(self, "place", "") != "here":
            return
        if getattr(self, "essential", False):
            raise SpecError(
                f"{where}.essential: not together with place='here': the node neither restarts nor "
                "ends with what lives in the caller's process; use place='process'"
            )
        for name in ("cpus", "env"):
            if getattr(self, name, None):
                raise SpecError(
                    f"{where}.{name}: not together with place='here', where the actor lives in the "
                    "caller's process; pin that process, or use place='process'"
                )

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str = "") -> Self:
        """The spec that ``to_dict`` or a TOML table describes; ``where`` is its key path."""
        table = mapping(data, where or cls.__name__)
        refuse_unknown(table, cls._RULES, where)
        prefix = f"{where}." if where else ""
        for spec in fields(cls):  # type: ignore[arg-type]
            lacks_default = spec.default is MISSING and spec.default_factory is MISSING
            if lacks_default and spec.name not in table:
                raise SpecError(f"{prefix}{spec.name}: missing; {cls.__name__} needs it")
        checked = {name: cls._RULES[name](value, prefix + name) for name, value in table.items()}
        try:
            return cls(**checked)
        except SpecError as error:  # only _check can still object, and it knows no path
            raise SpecError(error.message.replace(f"{cls.__name__}.", prefix, 1)) from error

    def to_dict(self) -> dict[str, Any]:
        """The spec as JSON values."""
        return {name: plain_value(getattr(self, name)) for name in self._RULES}


def plain_value(value: Any) -> Any:
    if isinstance(value, (Checked, Settings)):
        return value.to_dict()
    if isinstance(value, Ref):
        return write_argument(value)
    if isinstance(value, Mapping):
        return {name: plain_value(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_value(part) for part in value]
    return value
