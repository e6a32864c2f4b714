"""How figures look: colours, dashes, fonts."""

# About 3:1 against white and against near-black; told apart by the colour-blind in this order.
RUN_COLOURS = (
    "#2f7fd0",
    "#d9660d",
    "#1f9e6e",
    "#c2569b",
    "#8a8418",
    "#7a63d4",
    "#1596a8",
    "#cf4747",
)
INTERVAL_COLOURS = {
    "init": "#7d8794",
    "compile": "#7a63d4",
    "input_wait": "#e0a526",
    "train": "#2f7fd0",
    "averaging": "#1596a8",
    "swap": "#14614a",
    "eval_forward": "#1f9e6e",
    "decode": "#6fbf73",
    "eval_wait": "#a9d8a0",
    "checkpoint": "#a0683c",
    "sentences": "#c2569b",
    "logging": "#8a8418",
    "overhead": "#b4bac2",
    "lost_work": "#cf4747",
}
# Replaced by the page's own text colour, so that one drawing serves light and dark.
INK = "#22262b"
OTHER_COLOUR = "#7d8794"
CLIFF_COLOUR = "#cf4747"
DASHES = ("solid", "dashed", "dash-dot", "dotted")
LEGEND_ENTRIES = 17
FONTS = "DejaVu Sans, Verdana, Arial, sans-serif"


def run_colour(index: int) -> str:
    return RUN_COLOURS[index % len(RUN_COLOURS)]


def run_dash(index: int) -> str:
    """Returns the dash of the run of that index: another one for each round of colours."""
    return DASHES[index // len(RUN_COLOURS) % len(DASHES)]


def device_colour(index: int) -> str:
    """Returns the colour of the processor of that index; the first are unlike the phases'."""
    return RUN_COLOURS[(1, 5, 3, 6, 4, 7, 0, 2)[index % len(RUN_COLOURS)]]


def shortened(name: str, most: int = 30) -> str:
    """Returns a name cut in its middle where it is longer than ``most`` characters."""
    if len(name) <= most:
        return name
    half = (most - 1) // 2
    return f"{name[: most - 1 - half]}…{name[-half:]}"
