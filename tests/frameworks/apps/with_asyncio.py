"""FastAPI: the worker runs in the event loop of the application."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker

from sqlqueue import AsyncQueueSession, Worker
from tests.frameworks.apps.models import Customer, Welcome


def stop_application(serving: asyncio.Task[None]) -> None:
    """Stop the application if its worker cannot continue; the worker has logged the reason, such as a missing table."""
    if not serving.cancelled() and serving.exception() is not None:
        signal.raise_signal(signal.SIGTERM)


def application(engine: AsyncEngine) -> FastAPI:
    Session = async_sessionmaker(engine, class_=AsyncQueueSession, expire_on_commit=False)
    worker = Worker(Session)

    @worker.handler(Welcome)
    async def greet(session: AsyncQueueSession, welcome: Welcome) -> None:
        customer = await session.get_one(Customer, welcome.customer_id)
        customer.greeting = f"Welcome, {customer.name}!"

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        serving = asyncio.create_task(worker.serve())
        serving.add_done_callback(stop_application)
        try:
            yield
        finally:
            worker.stop()
            await asyncio.wait([serving])
            await engine.dispose()

    app = FastAPI(lifespan=lifespan)

    @app.post("/customers", status_code=201)
    async def create(name: str) -> dict[str, int]:
        async with Session.begin() as session:
            customer = Customer(name=name)
            session.add(Welcome(customer=customer))  # both rows are stored, or neither
            if name == "nobody":
                raise HTTPException(422, "that is no name")
        return {"id": customer.id}

    @app.get("/customers/{key}")
    async def show(key: int) -> dict[str, str | None]:
        async with Session() as session:
            customer = await session.get(Customer, key)
        if customer is None:
            raise HTTPException(404)
        return {"name": customer.name, "greeting": customer.greeting}

    return app
