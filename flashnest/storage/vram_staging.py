"""Host buffers between numpy arrays and a device: one transfer each way for a batch. Knows no record.

For CUDA the buffers are pinned, both copies are queued on the current stream, and `receive` waits for that stream
once. On the CPU the buffers are the tensors. Buffers grow with the largest batch and stay.
"""

from __future__ import annotations

import numpy as np
import torch

from flashnest.record import I32Array, U32Array, U64Array

_FIRST_WORDS = 1 << 14


class Staging:
    """The buffers of one table, used by its owner thread. Every `send` is followed by a `receive` before the next."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._pinned = device, device.type == "cuda"
        self._out, self._back = self._buffer(_FIRST_WORDS), self._buffer(_FIRST_WORDS)

    def _buffer(self, words: int) -> torch.Tensor:
        return torch.empty(words, dtype=torch.int32, pin_memory=self._pinned)

    def send(self, keys: U64Array, *others: U32Array) -> tuple[torch.Tensor, ...]:
        """Bring keys, uint64 (n,), and other uint32 arrays to the device, in one copy.

        Returns an int64 (n,) tensor and int32 tensors of the others' shapes, valid until the next `send`.
        """
        words = 2 * keys.size + sum(other.size for other in others)
        if words > len(self._out):
            self._out = self._buffer(2 * words)
        buffer: I32Array = self._out.numpy()
        at = 2 * keys.size
        buffer[:at].view(np.uint64)[:] = keys
        for other in others:
            buffer[at : at + other.size].view(np.uint32).reshape(other.shape)[:] = other
            at += other.size
        there = self._out[:words].to(self._device, non_blocking=True)
        tensors, at = [there[: 2 * keys.size].view(torch.int64)], 2 * keys.size
        for other in others:
            tensors.append(there[at : at + other.size].view(other.shape))
            at += other.size
        return tuple(tensors)

    def receive(self, *tensors: torch.Tensor) -> tuple[I32Array, ...]:
        """Bring tensors of 32-bit or 64-bit integers or bools back in one copy, waiting until they are there.

        Returns one flat int32 array each, two words for 64 bits, valid until the next `receive`.
        """
        parts = [_words(tensor) for tensor in tensors]
        words = sum(len(part) for part in parts)
        if words > len(self._back):
            self._back = self._buffer(2 * words)
        back = self._back[:words]
        if not self._pinned:
            torch.cat(parts, out=back)
        else:
            back.copy_(torch.cat(parts), non_blocking=True)
            torch.cuda.current_stream(self._device).synchronize()
        flat: I32Array = back.numpy()
        return tuple(np.split(flat, np.cumsum([len(part) for part in parts])[:-1].tolist()))


def _words(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype == torch.bool:
        tensor = tensor.to(torch.int32)
    return tensor.flatten().view(torch.int32)
