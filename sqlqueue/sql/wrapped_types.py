"""The library's own column types, which migrations show as the SQLAlchemy types that they wrap."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

from sqlalchemy.types import TypeDecorator, TypeEngine

T = TypeVar("T")
W = TypeVar("W", bound="WrappedType[Any]")


class WrappedType(TypeDecorator[T]):
    """A type that checks or converts values, and stores them with the SQLAlchemy type that it wraps."""

    cache_ok = True
    _wrapper: ClassVar[type[WrappedType[Any]]]
    """The class whose :meth:`wrapping` made this class."""

    @classmethod
    def wrapping(cls: type[W], stock: type[TypeEngine[Any]], **arguments: Any) -> W:
        """Return an instance that wraps ``stock``, whose class has the module and name of ``stock``.

        Alembic writes types into migrations by the module and name of their class, and a migration must not import
        this package.
        """
        names = {"impl": stock, "cache_ok": True, "__module__": stock.__module__, "_wrapper": cls}
        made: Any = type(stock.__name__, (cls,), names)
        wrapped: W = made(**arguments)
        return wrapped

    def __reduce__(self) -> tuple[Any, ...]:
        # pickled through the wrapped type, because the class cannot be imported by its name
        kept = ("impl", "impl_instance", "_variant_mapping")
        state = {name: value for name, value in self.__dict__.items() if name in kept}
        return self._wrapper.wrapping, (type(self).impl,), state

    def __setstate__(self, state: dict[str, Any]) -> None:
        # defined here, because otherwise it would be looked up in the wrapped type, which would be cached without its
        # arguments
        self.__dict__.update(state)
