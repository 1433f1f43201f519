"""Customers sign up over HTTP."""

from django.core.exceptions import BadRequest
from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.urls import path
from django.views.decorators.http import require_POST

from shop.models import Customer, Welcome


@require_POST
def create(request: HttpRequest) -> JsonResponse:
    with transaction.atomic():
        customer = Customer.objects.create(name=request.POST["name"])
        Welcome.objects.create(customer_id=customer.pk)  # enqueueing is an insert; both rows are committed, or neither
        if customer.name == "nobody":
            raise BadRequest("that is not a name")
    return JsonResponse({"id": customer.pk}, status=201)


def show(request: HttpRequest, key: int) -> JsonResponse:
    customer = get_object_or_404(Customer, pk=key)
    return JsonResponse({"name": customer.name, "greeting": customer.greeting})


urlpatterns = [path("customers", create), path("customers/<int:key>", show)]
