"""Recordings, as small as they can be."""

import io
import wave


def wav_file(samples: bytes, *, rate: int = 22_050, channels: int = 1, width: int = 2) -> bytes:
    written = io.BytesIO()
    with wave.open(written, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(samples)
    return written.getvalue()
