"""Customers sign up over HTTP, and a worker in the same event loop greets them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException
from sqlalchemy import ForeignKey, Identity, String
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqlqueue import AsyncQueueSession, QueueMixin, Worker
from sqlqueue.dashboard import Dashboard, only_this_machine

engine = create_async_engine(os.environ.get("DATABASE_URL", "sqlite+aiosqlite:///app.db"))
Session = async_sessionmaker(engine, class_=AsyncQueueSession, expire_on_commit=False)
worker = Worker(Session)


class Base(DeclarativeBase):
    pass


class Customer(Base):
    __tablename__ = "customer"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    name: Mapped[str] = mapped_column(String(100))
    greeting: Mapped[str | None] = mapped_column(String(200))


class Welcome(QueueMixin, Base):
    """A customer to be greeted."""

    __tablename__ = "welcome"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    customer_id: Mapped[int] = mapped_column(ForeignKey(Customer.id))


@worker.handler(Welcome)
async def greet(session: AsyncQueueSession, welcome: Welcome) -> None:
    customer = await session.get_one(Customer, welcome.customer_id)
    customer.greeting = f"Welcome, {customer.name}!"


def stop_application(serving: asyncio.Task[None]) -> None:
    """Shut down the application if its worker cannot continue; the worker has logged the reason."""
    if not serving.cancelled() and serving.exception() is not None:
        signal.raise_signal(signal.SIGTERM)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with engine.begin() as connection:  # in production, run alembic upgrade head first
        await connection.run_sync(Base.metadata.create_all)
    serving = asyncio.create_task(worker.serve())
    serving.add_done_callback(stop_application)
    try:
        yield
    finally:
        worker.stop()
        await asyncio.wait([serving])
        await engine.dispose()


app = FastAPI(lifespan=lifespan)
# for development: put your application's login here
app.mount("/queues", Dashboard(Session, Base, authorize=only_this_machine))


@app.post("/customers", status_code=201)
async def create(name: str) -> dict[str, int]:
    async with Session.begin() as session:
        customer = Customer(name=name)
        session.add(customer)
        await session.flush()
        session.add(Welcome(customer_id=customer.id))  # committed with the customer, or not at all
        if name == "nobody":
            raise HTTPException(422, "that is not a name")
    return {"id": customer.id}


@app.get("/customers/{key}")
async def show(key: int) -> dict[str, str | None]:
    async with Session() as session:
        customer = await session.get(Customer, key)
    if customer is None:
        raise HTTPException(404)
    return {"name": customer.name, "greeting": customer.greeting}
