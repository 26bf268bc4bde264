"""The service: `/` says hello and from which release, `/health` says that it serves."""

import os
import tomllib
from pathlib import Path

import orjson
from pydantic import BaseModel, Field
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hello import RELEASE


class Settings(BaseModel):
    """What the managed file `hello.toml` holds."""

    port: int = Field(ge=1, le=65535)
    greeting: str


def read_settings(path: Path) -> Settings:
    """Read the settings; a wrong value ends the service before it listens."""
    return Settings.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))


def make_app(settings: Settings) -> Starlette:
    """Return the application."""

    async def hello(request: Request) -> Response:
        name = request.query_params.get("name", "world")
        return answer({"hello": f"{settings.greeting}, {name}", **identity()})

    async def health(_: Request) -> Response:
        return answer({"ok": True, **identity()})

    return Starlette(routes=[Route("/", hello), Route("/health", health)])


def identity() -> dict[str, str]:
    """Return what this process is; capsule puts the last two into its environment."""
    return {
        "release": RELEASE,
        "orjson": orjson.__version__,
        "generation": os.environ.get("CAPSULE_GENERATION", ""),
        "commit": os.environ.get("CAPSULE_COMMIT", ""),
    }


def answer(value: dict[str, object]) -> Response:
    """Return `value` as JSON."""
    return Response(orjson.dumps(value), media_type="application/json")
