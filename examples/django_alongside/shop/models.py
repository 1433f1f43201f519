"""Django's own model, and its model of the queue's table."""

from django.db import models


class Customer(models.Model):
    name = models.CharField(max_length=100)
    greeting = models.CharField(max_length=200, null=True)


class Welcome(models.Model):
    """The columns of the queue that Django sets.  All others have defaults in the database."""

    customer_id = models.BigIntegerField()

    class Meta:
        managed = False  # shop.queues defines the table
        db_table = "welcome"
