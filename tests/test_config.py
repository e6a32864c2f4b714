import dataclasses
import json
from collections.abc import Callable
from typing import Literal

import gin
import pytest

from tfasr.kit.config import config_class, require, to_json


@config_class
class ExampleConfig:
    count: int = 1
    share: float = 0.5
    name: Literal["a", "b"] = "a"
    maybe: int | None = None
    pair: tuple[int, float] = (1, 2.0)
    many: tuple[str, ...] = ()
    function: Callable[[], int] | None = None
    flag: bool = False

    def check(self):
        require(self.count > 0, self, "count", "positive")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("count", 1.0),
        ("count", "1"),
        ("count", True),
        ("count", None),
        ("share", "0.5"),
        ("share", False),
        ("name", "c"),
        ("name", ["a"]),
        ("maybe", 1.5),
        ("pair", (1,)),
        ("pair", (1.5, 2.0)),
        ("pair", "ab"),
        ("many", "ab"),
        ("many", ("a", 1)),
        ("function", 3),
        ("flag", 1),
    ],
)
def test_values_of_another_type_are_refused_by_name(field, value):
    with pytest.raises(TypeError, match=f"ExampleConfig.{field} must be") as error:
        ExampleConfig(**{field: value})
    assert f"Received: {value!r}" in str(error.value)


def test_right_types_are_taken():
    config = ExampleConfig(share=2, maybe=3, pair=[1, 2], many=["x", "y"], function=len)
    assert config.pair == (1, 2)
    assert config.many == ("x", "y")
    assert isinstance(config.share, float)
    hash(config)


def test_values_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match=r"ExampleConfig\.count must be positive. Received: 0\."):
        ExampleConfig(count=0)


def test_a_config_is_frozen_and_keyword_only():
    with pytest.raises(dataclasses.FrozenInstanceError):
        ExampleConfig().count = 2
    with pytest.raises(TypeError):
        ExampleConfig(2)


def test_a_plain_call_behaves_as_written_whatever_gin_parsed():
    try:
        gin.parse_config("ExampleConfig.count = 7")
        assert ExampleConfig().count == 1
        assert gin.get_configurable(ExampleConfig)().count == 7
    finally:
        gin.clear_config()


def test_json():
    plain = to_json(ExampleConfig(function=len, many=["x"]))
    assert json.loads(json.dumps(plain)) == plain
    assert plain["function"] == "len"
    assert plain["many"] == ["x"]
    assert json.dumps(to_json(ExampleConfig(share=2))) == json.dumps(
        to_json(ExampleConfig(share=2.0))
    )
