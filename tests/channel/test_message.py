from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from fedloom.channel import deserialise, payload, serialise
from fedloom.types import Message

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]
TENSORS = st.builds(
    lambda shape, dtype, seed: (torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * 100).to(dtype),
    st.lists(st.integers(0, 4), max_size=3),
    st.sampled_from(DTYPES),
    st.integers(0, 9),
)
MESSAGES = st.dictionaries(
    st.text(min_size=1, max_size=8).filter(lambda key: key != "__metadata__"), TENSORS, max_size=4
)


@given(message=MESSAGES)
def test_the_payload_is_the_length_of_the_serialised_message(message: Message) -> None:
    assert payload(message) == len(serialise(message))


@given(message=MESSAGES)
def test_a_message_survives_its_way(message: Message) -> None:
    back = deserialise(serialise(message))
    assert back.keys() == message.keys()
    for key, value in message.items():
        assert back[key].dtype == value.dtype
        assert torch.equal(back[key], value)


@given(message=MESSAGES, clients=st.integers(1, 3))
def test_a_stack_costs_each_client_its_own_message(message: Message, clients: int) -> None:
    stack = {key: torch.stack([value] * clients) for key, value in message.items()}
    assert payload({}, stack) == payload(message)


def test_views_of_one_tensor_are_sent_as_if_they_were_two() -> None:
    theta = torch.arange(6.0)
    message = {"x": theta, "same": theta, "part": theta[2:4], "turned": theta.view(2, 3).T}
    data = serialise(message)
    assert len(data) == payload(message)
    assert all(torch.equal(value, message[key]) for key, value in deserialise(data).items())


def test_four_bytes_a_number_and_a_header() -> None:
    small, large = payload({"x": torch.zeros(1000)}), payload({"x": torch.zeros(2000)})
    assert large - small == 4000
    assert small - 4000 < 100
    assert payload({}) < 24
