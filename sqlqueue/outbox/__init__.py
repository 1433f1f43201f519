"""The transactional outbox: messages stored in the same transaction as the data, and published in order by key.

>>> relay = Relay(Session, Outbox, publish)
"""

from ..kinds import OutboxMixin
from .claims import claim_messages
from .relay import Relay

__all__ = ["OutboxMixin", "Relay", "claim_messages"]
