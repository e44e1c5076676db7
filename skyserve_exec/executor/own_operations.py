"""Users' functions as operations: their signature becomes a pydantic model, its JSON schema the route's.

Room: spawner (load) and executor (call).
"""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, PydanticUserError, ValidationError, create_model
from pydantic.errors import PydanticSchemaGenerationError

from skyserve_exec.errors import BadInput
from skyserve_exec.executor.loaded_operations import LoadedOperation
from skyserve_exec.operation_table import Operation
from skyserve_exec.own_operation import MARK, OwnOperation
from skyserve_exec.states import ScheduleType

PYTHONS_OWN = (__file__, importlib.__file__)  # where a module that is not there is looked for


def load(modules: tuple[str, ...], taken: frozenset[str]) -> dict[str, LoadedOperation]:
    """The marked functions of these modules, by operation name.

    Raises:
        BadInput: a module cannot be imported, has no operation, or a name or signature cannot be used.
    """
    found: dict[str, LoadedOperation] = {}
    for name in dict.fromkeys(modules):
        module = _import(name)
        functions = [value for value in vars(module).values() if callable(value) and hasattr(value, MARK)]
        if not functions:
            raise BadInput(f"operations: module {name} has no operation", hint="Mark functions with @operation().")
        for function in functions:
            item = _loaded(function)
            if item.operation.name in taken or item.operation.name in found:
                raise BadInput(
                    f"operations: {item.operation.name} of module {name} is there already",
                    hint="Give it another name: @operation(name=…).",
                )
            found[item.operation.name] = item
    return found


def _import(name: str) -> ModuleType:
    # The directory the server was started in counts, as for `python -m`.
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except Exception as error:  # a user's module may raise anything
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
        where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames[-1].filename not in PYTHONS_OWN else ""
        raise BadInput(
            f"operations: module {name} cannot be imported: {type(error).__name__}: {error}{where}",
            hint="Mend the module or leave it out of --operations.",
        ) from None


def _loaded(function: Callable[..., object]) -> LoadedOperation:
    mark: OwnOperation = getattr(function, MARK)
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise BadInput(
            f"operation {mark.name}: it is asynchronous", hint="Make it a plain function that calls asyncio.run(…)."
        )
    model = _model_of(function, mark.name)
    doc = inspect.getdoc(function) or ""
    row = Operation(
        name=mark.name,
        schedule_type=ScheduleType(mark.schedule_type),
        payload="",
        function=f"{function.__module__}:{function.__qualname__}",
        help=doc.partition("\n")[0],
        restartable=mark.restartable,
        deadline=mark.deadline,
        schema=model.model_json_schema(),
    )
    return LoadedOperation(row, _call(function, model))


def _model_of(function: Callable[..., object], name: str) -> type[BaseModel]:
    try:
        hints = get_type_hints(function, include_extras=True)
        fields: dict[str, Any] = {}
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind not in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}:
                raise BadInput(f"operation {name}: parameter {parameter.name} must be a plain named one")
            default = ... if parameter.default is parameter.empty else parameter.default
            fields[parameter.name] = (hints.get(parameter.name, Any), default)
        return create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
    except (PydanticUserError, PydanticSchemaGenerationError, NameError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise BadInput(
            f"operation {name}: its signature cannot be used: {reason}", hint="Use types that JSON can carry."
        ) from None


def _call(function: Callable[..., object], model: type[BaseModel]) -> Callable[[dict[str, Any]], object]:
    names = tuple(model.model_fields)

    def call(payload: dict[str, Any]) -> object:
        try:
            values = model.model_validate(payload)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise BadInput(f"{where}: {first['msg']}") from None
        return function(**{name: getattr(values, name) for name in names})

    return call
