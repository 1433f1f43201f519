"""Models on the bases of Flask-SQLAlchemy, SQLModel and Advanced Alchemy."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, Identity, StaticPool, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import sqlqueue
from sqlqueue import ConfigurationError, QueueMixin, QueueOptions, QueueSession


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = create_engine("sqlite://", poolclass=StaticPool)
    yield engine
    engine.dispose()


def lives(session: Any, model: type[Any], **values: Any) -> None:
    """Enqueue, claim, fail, retry and complete a task, using only functions."""
    session.add(model(**values))
    session.commit()
    task = sqlqueue.claim(session, model)
    sqlqueue.fail(session, task, "no")
    session.commit()
    assert sqlqueue.retry(session, model) == 1
    with sqlqueue.claiming(session, model) as again:
        assert again.attempt == 2
    session.commit()
    assert sqlqueue.stats(session, model)["completed"] == 1
    assert {index.name for index in model.__table__.indexes} >= {
        f"ix_{model.__table__.name}_claim",
        f"ix_{model.__table__.name}_due",
    }


# -- Flask-SQLAlchemy --------------------------------------------------------------------------------------------------


@pytest.fixture(params=["classic", "DeclarativeBase"])
def flask(request: pytest.FixtureRequest) -> Iterator[Any]:
    class Base(DeclarativeBase):
        pass

    flask, flask_sqlalchemy = pytest.importorskip("flask"), pytest.importorskip("flask_sqlalchemy")
    app = flask.Flask("tests")
    app.config["SQLALCHEMY_DATABASE_URI"] = "sqlite://"
    db = flask_sqlalchemy.SQLAlchemy(**({} if request.param == "classic" else {"model_class": Base}))
    db.init_app(app)
    with app.app_context():
        yield db
        db.session.remove()
        db.engine.dispose()


def test_flask_sqlalchemy(flask: Any) -> None:
    class Job(QueueMixin, flask.Model):
        id: Mapped[int] = mapped_column(Identity(), primary_key=True)

    flask.create_all()
    assert Job.__table__.name == "job"
    lives(flask.session, Job, priority=3)


def test_flask_sqlalchemy_base_first(flask: Any) -> None:
    class Job(flask.Model, QueueMixin):
        id: Mapped[int] = mapped_column(Identity(), primary_key=True)

    flask.create_all()
    lives(flask.session, Job)


def test_flask_sqlalchemy_with_methods() -> None:
    flask, flask_sqlalchemy = pytest.importorskip("flask"), pytest.importorskip("flask_sqlalchemy")
    from flask_sqlalchemy.session import Session as FlaskSession

    class FlaskQueueSession(QueueSession, FlaskSession):
        pass

    app = flask.Flask("tests")
    app.config["SQLALCHEMY_DATABASE_URI"] = "sqlite://"
    db = flask_sqlalchemy.SQLAlchemy(app, session_options={"class_": FlaskQueueSession})

    class Job(QueueMixin, db.Model):  # type: ignore[misc, name-defined]
        id: Mapped[int] = mapped_column(Identity(), primary_key=True)

    with app.app_context():
        db.create_all()
        db.session.add(Job())
        session = db.session()
        session.complete(session.claim(Job))
        db.session.commit()
        db.session.remove()
        db.engine.dispose()


# -- SQLModel ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def sqlmodel() -> Iterator[Any]:
    """Clear SQLModel's metadata, which is shared by the whole process."""
    sqlmodel = pytest.importorskip("sqlmodel")
    yield sqlmodel
    sqlmodel.SQLModel.metadata.clear()
    sqlmodel.SQLModel._sa_registry.dispose()


def _sqlmodel_job(sqlmodel: Any, **attributes: Any) -> Any:
    annotations = {"id": int | None, "name": str, **attributes.pop("__annotations__", {})}
    own = {"id": sqlmodel.Field(default=None, primary_key=True), "name": "", **attributes}
    namespace = {"__module__": __name__, "__annotations__": annotations, **own}
    return type(sqlmodel.SQLModel)("Job", (QueueMixin, sqlmodel.SQLModel), namespace, table=True)


def test_sqlmodel(sqlmodel: Any, engine: Engine) -> None:
    """Also with columns of the queue in the constructor and as attributes."""
    job = _sqlmodel_job(sqlmodel)
    sqlmodel.SQLModel.metadata.create_all(engine)
    with sqlmodel.Session(engine) as session:
        lives(session, job, name="a")
        task = job(name="b")
        task.priority = 8
        session.add_all([job(name="c", priority=7), task])
        session.commit()
        assert [sqlqueue.claim(session, job).priority for _ in range(2)] == [7, 8]


def test_sqlmodel_collision(sqlmodel: Any, engine: Engine) -> None:
    own = {"status": "new", "__annotations__": {"status": str}}
    with pytest.raises(ConfigurationError, match=r"Job\.status"):
        _sqlmodel_job(sqlmodel, **own)
    job = _sqlmodel_job(sqlmodel, **own, __queue__=QueueOptions(columns={"status": "queue_status"}))
    sqlmodel.SQLModel.metadata.create_all(engine)
    with sqlmodel.Session(engine) as session:
        lives(session, job, status="paid")


# -- Advanced Alchemy --------------------------------------------------------------------------------------------------


@pytest.fixture
def bases() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it uses a feature that SQLAlchemy 2.1 has deprecated
        return pytest.importorskip("advanced_alchemy.base")


def _advanced_job(base: Any, name: str, **attributes: Any) -> type[Any]:
    table = f"advanced_{name.lower()}"
    base.metadata.remove(base.metadata.tables[table]) if table in base.metadata.tables else None
    return type(f"Job{name}{len(attributes)}", (QueueMixin, base), {"__tablename__": table, **attributes})


@pytest.mark.parametrize("name", ["UUIDBase", "UUIDv6Base", "UUIDv7Base", "BigIntBase"])
def test_advanced_alchemy(bases: Any, engine: Engine, name: str) -> None:
    job = _advanced_job(getattr(bases, name), name)
    job.__table__.create(engine)
    with QueueSession(engine) as session:
        lives(session, job, priority=3)


@pytest.mark.parametrize("name", ["UUIDAuditBase", "BigIntAuditBase"])
def test_advanced_alchemy_with_its_own_created_at(bases: Any, engine: Engine, name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"AuditColumns\.created_at.*queue_created_at"):
        _advanced_job(getattr(bases, name), name)
    options = QueueOptions(columns={"created_at": "queue_created_at"})
    job = _advanced_job(getattr(bases, name), name, __queue__=options)
    job.__table__.create(engine)
    with QueueSession(engine) as session:
        lives(session, job)
