"""Models with unusual keys, columns and tables."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import ForeignKey, Identity, Integer, String
from sqlalchemy.orm import Mapped, column_property, deferred, mapped_column, relationship

from sqlqueue import QueueMixin, QueueOptions
from tests.support.models import Base


class Folder(Base):
    __tablename__ = "folder"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    name: Mapped[str] = mapped_column(String(20))


class Scan(QueueMixin, Base):
    """A model with foreign keys in both directions and to itself, and eagerly loaded relationships."""

    __tablename__ = "scan"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    folder_id: Mapped[int | None] = mapped_column(ForeignKey("folder.id"))
    parent_id: Mapped[int | None] = mapped_column(ForeignKey("scan.id", ondelete="SET NULL"))
    folder: Mapped[Folder | None] = relationship(lazy="joined")
    pages: Mapped[list[Page]] = relationship(lazy="selectin", order_by="Page.id")
    parent: Mapped[Scan | None] = relationship(remote_side="Scan.id", lazy="joined", join_depth=1)


class Page(Base):
    __tablename__ = "page"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    scan_id: Mapped[int] = mapped_column(ForeignKey("scan.id"))


class Computed(QueueMixin, Base):
    """A model with deferred and computed columns, and a version."""

    __tablename__ = "computed"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    body: Mapped[str] = deferred(mapped_column(String(50), default="body"))
    version: Mapped[int] = mapped_column(Integer)
    doubled: Mapped[int] = column_property(2 * version)
    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012


class Queued(QueueMixin, Base):
    __abstract__ = True
    __queue__ = QueueOptions(max_attempts=2, lease=timedelta(seconds=7))

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    tenant: Mapped[int] = mapped_column(Integer, default=1)


class Export(Queued):
    __tablename__ = "export"


class Import(Queued):
    __tablename__ = "import"
    __queue__ = QueueOptions(max_attempts=9)
