"""Looking things up by name: built-in ones, and those that a user's module registers."""

import importlib
import inspect
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar, overload

from tfasr.errors import UsageError, lacking

_Thing = TypeVar("_Thing")
_PACKAGE = str(Path(__file__).parent)
_registries: "list[weakref.ref[Registry]]" = []


@dataclass(frozen=True)
class Entry:
    """One name of a registry and where it was registered.

    Attributes:
        name: by which it is looked up.
        module: the module that registers the name when imported; for a built-in thing, the module
            that defines it.
        file: where `Registry.register` was called, or the built-in name is listed.
        line: of that file.
        attribute: the built-in thing's name in its module, which is imported when it is first
            looked up; None for what was registered.
    """

    name: str
    module: str
    file: str
    line: int
    attribute: str | None = None

    @property
    def place(self) -> str:
        """Returns "file:line"."""
        return f"{self.file}:{self.line}"


class Registry(Mapping[str, _Thing], Generic[_Thing]):
    """A mapping from names to things, in the order of registration.

    A user's module adds a thing by registering it where it is written::

        @MODELS.register("my_model")
        class MyModelConfig: ...

    Args:
        kind: what is registered, a noun for messages such as "model".
        built_in: names to "module:attribute", imported when first looked up, so that listing the
            names costs no import.
        check: called with each thing when it is registered or first imported; raises TypeError or
            ValueError for what cannot be used.
        then: called with name and thing after a thing has been registered.
        plural: of ``kind``, if it is not ``kind`` with an "s".
    """

    def __init__(
        self,
        kind: str,
        built_in: Mapping[str, str] | None = None,
        *,
        check: Callable[[Any], None] | None = None,
        then: Callable[[str, Any], None] | None = None,
        plural: str | None = None,
    ):
        self.kind = kind
        self.plural = plural or f"{kind}s"
        self._check = check
        self._then = then
        self._entries: dict[str, Entry] = {}
        self._things: dict[str, _Thing] = {}
        _registries.append(weakref.ref(self))
        file, line, _ = _caller()
        for name, target in (built_in or {}).items():
            module, _, attribute = target.partition(":")
            self._add(Entry(name, module, file, line, attribute))

    @overload
    def register(self, name: str) -> Callable[[_Thing], _Thing]: ...

    @overload
    def register(self, name: str, thing: _Thing) -> _Thing: ...

    def register(self, name, thing=None):
        """Registers a thing: ``register(name, thing)``, or ``@register(name)`` above it.

        Returns:
            The thing, or without one a decorator that registers what it decorates.

        Raises:
            UsageError: if the name is taken (it names both files and lines) or is not one word, or
                if the thing lacks what its kind must have. In an interactive session a name may
                be registered again.
        """
        file, line, module = _caller()

        def add(thing: _Thing) -> _Thing:
            entry = Entry(name, module, file, line)
            self._refuse_taken(entry)
            self._checked(entry, thing)
            self._add(entry)
            self._things[name] = thing
            if self._then is not None:
                self._then(name, thing)
            return thing

        return add if thing is None else add(thing)

    def entry(self, name: str) -> Entry:
        """Returns where a name was registered, without importing a built-in thing.

        Raises:
            UsageError: if there is no such name; it lists those that there are.
        """
        if name not in self._entries:
            raise UsageError(
                f"There is no {self.kind} {name!r}. Known {self.plural}: {self.listed()}. To use "
                "one from a module of your own, import the module: --import my_lab.my_module."
            )
        return self._entries[name]

    def name_of(self, thing: _Thing) -> str | None:
        """Returns the name under which a thing is registered, or None."""
        # A built-in thing that is not imported yet is compared by where it is defined.
        defined_at = (getattr(thing, "__module__", None), getattr(thing, "__name__", None))
        for name, entry in self._entries.items():
            if name in self._things:
                if self._things[name] is thing:
                    return name
            elif (entry.module, entry.attribute) == defined_at:
                return name
        return None

    def listed(self) -> str:
        """Returns the names for a message: "a, b, c"."""
        return ", ".join(self._entries)

    def __getitem__(self, name: str) -> _Thing:
        """Returns the thing of a name.

        Raises:
            UsageError: if there is no such name; it lists those that there are.
        """
        entry = self.entry(name)
        if name not in self._things:
            thing = getattr(self._imported(entry), entry.attribute)
            self._checked(entry, thing)
            self._things[name] = thing
        return self._things[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Returns the thing of a name, or the default if there is no such name."""
        if name not in self:
            return default
        return self[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"Registry({self.kind!r}: {self.listed()})"

    def _imported(self, entry: Entry) -> ModuleType:
        try:
            return importlib.import_module(entry.module)
        except ModuleNotFoundError as error:
            said = lacking(error, f"The {self.kind} {entry.name!r}")
            if said is None:
                raise
            raise ModuleNotFoundError(said, name=error.name) from error

    def _add(self, entry: Entry) -> None:
        if not entry.name or entry.name.split() != [entry.name]:
            raise UsageError(
                f"{entry.place}: the name of a {self.kind} must be one word. Received: "
                f"{entry.name!r}."
            )
        self._entries[entry.name] = entry

    def _refuse_taken(self, entry: Entry) -> None:
        known = self._entries.get(entry.name)
        # A module may be imported again, and a notebook's cell be run again.
        rerun = known and (known.place == entry.place or known.module == entry.module == "__main__")
        if known and not rerun:
            raise UsageError(
                f"{entry.place}: each {self.kind} must have a name of its own. Received: "
                f"{entry.name!r}, which {known.place} has registered. Choose another name."
            )

    def _checked(self, entry: Entry, thing: _Thing) -> None:
        if self._check is None:
            return
        try:
            self._check(thing)
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"{entry.place}: the {self.kind} {entry.name!r} cannot be used: {error}"
            ) from error


def entries_of_plugins() -> list[tuple[str, Entry]]:
    """Returns what modules outside tfasr have registered: the kind and the entry of each name."""
    return [
        (registry.kind, entry)
        for registry in filter(None, (reference() for reference in _registries))
        for entry in registry._entries.values()
        if not Path(entry.file).is_relative_to(_PACKAGE)
    ]


def _caller() -> tuple[str, int, str]:
    frame = inspect.currentframe()
    while frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno, frame.f_globals.get("__name__", "")
