"""What Django stores, and its view of the queue."""

from django.db import models


class Customer(models.Model):
    name = models.CharField(max_length=100)
    greeting = models.CharField(max_length=200, null=True)


class Welcome(models.Model):
    """The columns of the queue that Django fills in.  All others have defaults in the database."""

    customer_id = models.BigIntegerField()

    class Meta:
        managed = False  # its table belongs to shop.queues
        db_table = "welcome"
