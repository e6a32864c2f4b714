"""A small grammar of spoken commands: a few dozen words, in sentences of one to seven."""

import numpy as np

_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_HOURS = (*_DIGITS[1:], "ten", "eleven", "twelve")
_MINUTES = ("ten", "fifteen", "twenty", "thirty", "forty", "fifty")
_ROOMS = ("kitchen", "bedroom", "garden", "office", "hall")

# A slot in braces is filled from _SLOTS; a sentence form is drawn as often as it is listed.
_FORMS = (
    "turn the {room} {device} {state}",
    "turn the {room} {device} {state}",
    "switch {state} the {device}",
    "set {clock} to {hour} {minutes}",
    "wake me at {hour} {minutes}",
    "call {digit} {digit} {digit} {digit}",
    "{digit} {digit} {digit}",
    "go {direction} {digit} steps",
    "move {direction} and stop",
    "play the {which} song",
    "{answer}",
    "what's the time in the {room}",
)
_SLOTS = {
    "room": _ROOMS,
    "device": ("light", "heater", "radio", "fan"),
    "state": ("on", "off"),
    "clock": ("alarm", "timer"),
    "hour": _HOURS,
    "minutes": _MINUTES,
    "digit": _DIGITS,
    "direction": ("left", "right", "up", "down", "forward", "backward"),
    "which": ("first", "next", "last"),
    "answer": ("yes", "no", "stop", "go"),
}


def random_sentence(generator: np.random.Generator) -> str:
    """Returns a sentence, which is normalised text."""
    words = []
    for word in _choose(generator, _FORMS).split():
        slot = _SLOTS.get(word.strip("{}")) if word.startswith("{") else None
        words.append(_choose(generator, slot) if slot else word)
    return " ".join(words)


def _choose(generator: np.random.Generator, options: tuple[str, ...]) -> str:
    return options[int(generator.integers(len(options)))]
