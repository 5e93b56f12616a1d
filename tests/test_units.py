"""Quantities as text: exact values, refused units and what is suggested for them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashnest.errors import ConfigError
from flashnest.units import (
    Dimension,
    Quantity,
    UnitError,
    example,
    format_bytes,
    format_duration,
    parse_bytes,
    parse_duration_s,
    parse_percent,
    parse_quantity,
    parse_rate,
    parse_tokens,
)


@pytest.mark.parametrize(
    ("text", "value", "dimension"),
    [
        ("14GiB", 14 * 2**30, Dimension.BYTES),
        ("14 GB", 14 * 10**9, Dimension.BYTES),
        ("1.5KiB", 1536, Dimension.BYTES),
        ("512kB", 512_000, Dimension.BYTES),
        ("512KB", 512_000, Dimension.BYTES),
        ("0B", 0, Dimension.BYTES),
        ("8TiB", 2**43, Dimension.BYTES),
        ("1_000 MB", 10**9, Dimension.BYTES),
        ("5min", 300 * 10**9, Dimension.DURATION),
        ("100us", 100_000, Dimension.DURATION),
        ("1.5ms", 1_500_000, Dimension.DURATION),
        ("14d", 14 * 86400 * 10**9, Dimension.DURATION),
        ("5y", 5 * 365 * 86400 * 10**9, Dimension.DURATION),
        ("2h", 7200 * 10**9, Dimension.DURATION),
        ("0.5ns", 0.5, Dimension.DURATION),
        ("32 tokens", 32, Dimension.TOKENS),
        ("1token", 1, Dimension.TOKENS),
        ("32", 32, Dimension.COUNT),
        ("2.5", 2.5, Dimension.COUNT),
        (" 7 ", 7, Dimension.COUNT),
        ("90%", 90, Dimension.PERCENT),
        ("2000rec/s", 2000, Dimension.RECORD_RATE),
        ("2000 rec/s", 2000, Dimension.RECORD_RATE),
        ("20MB/s", 20_000_000, Dimension.BYTE_RATE),
        ("1GiB/s", 2**30, Dimension.BYTE_RATE),
    ],
)
def test_quantity_is_exact(text, value, dimension):
    assert parse_quantity(text) == Quantity(value, dimension)


@pytest.mark.parametrize(
    ("text", "suggestion"),
    [
        ("14Gb", "did you mean 14GB or 14GiB?"),
        ("14gib", "did you mean 14GiB?"),
        ("14G", "did you mean 14GB or 14GiB?"),
        ("64 m", "did you mean 64min or 64ms or 64MB or 64MiB?"),
        ("100\u00b5s", "did you mean 100us?"),
        ("5sec", "did you mean 5s?"),
        ("5 minutes", "did you mean 5min?"),
        ("2 years", "did you mean 2y?"),
        ("2w", "did you mean 2d?"),
        ("4 bytes", "did you mean 4B?"),
        ("4 Tokens", "did you mean 4tokens?"),
        ("20mb/s", "did you mean 20MB/s or 20MiB/s?"),
        ("5MS", "did you mean 5ms?"),
    ],
)
def test_unit_close_to_a_known_one_is_suggested(text, suggestion):
    with pytest.raises(UnitError, match="unknown unit") as caught:
        parse_quantity(text)

    assert caught.value.fix == suggestion
    assert text.strip() in caught.value.what


def test_strange_unit_lists_the_known_ones():
    with pytest.raises(UnitError) as caught:
        parse_quantity("3 apples")

    assert "GiB" in caught.value.why
    assert "rec/s" in caught.value.why
    assert caught.value.fix == ""


@pytest.mark.parametrize(
    "text", ["", "GiB", "-3MB", "1e9", "3..4", "1.MB", "4 5", "0x10", "\u0663MB", "3MB extra", "nan"]
)
def test_text_that_is_no_quantity_is_refused(text):
    with pytest.raises(UnitError):
        parse_quantity(text)


def test_error_is_a_config_error_and_a_value_error():
    with pytest.raises(ConfigError) as caught:
        parse_bytes("x")

    assert isinstance(caught.value, ValueError)
    assert caught.value.exit_code == 2


def test_bytes_take_plain_numbers_and_refuse_other_dimensions():
    assert parse_bytes("4096") == 4096
    assert parse_bytes("1.5B") == 2
    with pytest.raises(UnitError, match="'5min' is a duration where a size is needed"):
        parse_bytes("5min")


def test_durations_need_a_unit():
    assert parse_duration_s("5min") == 300.0
    assert parse_duration_s("100us") == pytest.approx(1e-4)
    assert parse_duration_s("0s") == 0.0
    with pytest.raises(UnitError, match="'5' is a plain number where a duration is needed"):
        parse_duration_s("5")


def test_tokens_are_whole():
    assert parse_tokens("32 tokens") == parse_tokens("32") == 32
    for text in ("2.5", "4kB"):
        with pytest.raises(UnitError):
            parse_tokens(text)


def test_percent_is_a_share_of_at_most_one():
    assert parse_percent("90%") == pytest.approx(0.9)
    assert parse_percent("100%") == 1.0
    for text in ("101%", "0.9", "9MB"):
        with pytest.raises(UnitError):
            parse_percent(text)


def test_rates_keep_records_and_bytes_apart():
    assert parse_rate("2000rec/s") == Quantity(2000, Dimension.RECORD_RATE)
    assert parse_rate("20MB/s") == Quantity(20_000_000, Dimension.BYTE_RATE)
    with pytest.raises(UnitError, match="where a rate in bytes is needed"):
        parse_rate("20MB")


@pytest.mark.parametrize("dimension", Dimension)
def test_every_dimension_has_an_example_that_reads_back(dimension):
    assert parse_quantity(example(dimension)).dimension is dimension


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (14 * 2**30, "14.0 GiB"),
        (3 * 2**41, "6.0 TiB"),
        (-2048, "-2.0 KiB"),
    ],
)
def test_bytes_for_people(count, text):
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (5e-9, "5 ns"),
        (1.5e-3, "1.5 ms"),
        (86e-6, "86.0 us"),
        (1, "1.0 s"),
        (300, "5.0 min"),
        (86400, "1.0 d"),
    ],
)
def test_durations_for_people(seconds, text):
    assert format_duration(seconds) == text


@given(st.integers(0, 2**60))
def test_formatted_bytes_read_back_within_their_precision(count):
    assert parse_bytes(format_bytes(count)) == pytest.approx(count, rel=0.05)


@given(st.text())
def test_any_text_is_a_quantity_or_a_unit_error(text):
    try:
        value = parse_quantity(text).value
    except UnitError as error:
        value = len(error.what)

    assert value >= 0
