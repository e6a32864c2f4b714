"""What the fuzzing tests share: how many examples, values of any kind, and damage to real files.

`make test` looks at a few examples of each; ``make fuzz`` at TFASR_FUZZ_EXAMPLES of each.
"""

import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st


def bounded(examples: int):
    """Returns the settings of a fuzzing test that looks at so many examples in `make test`."""
    return settings(
        deadline=None,
        max_examples=int(os.environ.get("TFASR_FUZZ_EXAMPLES", examples)),
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(
        [-1, 0, 1, 2**31, 2**63, 2**64, 10**30, 1e308, -0.0, "", "nan", "\0", "\ud800"]
    )
    | st.text(max_size=3)
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner)
    ),
    max_leaves=5,
)
"""JSON values of any kind."""

_MARKS = [
    b"\0",
    b"\xff",
    b"\n",
    b"\t",
    b",",
    b'"',
    b"\xef\xbb\xbf",
    b"\r\n",
    b"\xe2\x80\xa8",
]
_WORDS = [b"nan", b"inf", b"-1", b"1e999", b"9" * 21, b"{}", b"[]", b"null"]
_PIECES = st.binary(min_size=1, max_size=4) | st.sampled_from([*_MARKS, *_WORDS])


@st.composite
def damaged(draw, content: bytes) -> bytes:
    """Returns a file's content with a few bytes put in, overwritten, left out, doubled
    or cut.
    """
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(content)))
        end = min(len(content), at + draw(st.integers(0, 40)))
        kind = draw(st.sampled_from(["insert", "overwrite", "delete", "double", "cut"]))
        piece = draw(_PIECES)
        content = {
            "insert": content[:at] + piece + content[at:],
            "overwrite": content[:at] + piece + content[at + len(piece) :],
            "delete": content[:at] + content[end:],
            "double": content[:end] + content[at:],
            "cut": content[:at],
        }[kind]

    return content


def places(value):
    """Every dictionary within a JSON value."""
    if isinstance(value, dict):
        inner = value.values()
    elif isinstance(value, list):
        inner = value
    else:
        inner = ()

    own = [value] if isinstance(value, dict) and value else []
    return [*own, *(place for one in inner for place in places(one))]
