"""The transactional outbox: messages stored with the data that they are about, and published in their order.

>>> relay = Relay(Session, Outbox, publish)
"""

from ..kinds import OutboxMixin
from .message_claims import claim_messages
from .relay import Relay

__all__ = ["OutboxMixin", "Relay", "claim_messages"]
