"""Text that grows token by token, with the same work for each token however long the text has become."""

from heedful.text.tokenizer import Tokenizer

KEPT = 8  # tokens that are decoded again with the next one: what it is may depend on them
MOST = 24  # tokens from which on the window is cut back to about `KEPT`
BYTES = 4  # of a character in UTF-8, each of which may be a token


class GrowingText:
    """Only a window of the last tokens is decoded. Text is released when no further token can change it; released and
    rest are together what decoding all tokens gives, unless they hold bytes that are no UTF-8."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.window: list[int] = []
        self.released = 0  # characters of the window's text
        self.waited = 0  # tokens since something was last released

    def add(self, token: int) -> str:
        """What the token makes certain; a character of several tokens comes with its last."""
        if token in self.tokenizer.specials:
            return ""
        self.window.append(token)
        text = self._decoded(self.window)
        self.waited += 1
        certain = len(text.rstrip("\ufffd"))  # where a character is incomplete
        if self.waited >= BYTES:  # or wrong: no token can complete it
            certain = max(certain, len(text) - BYTES + 1)
        new = text[self.released : certain]
        if new:
            self.released, self.waited = certain, 0
        whole = not text.endswith("\ufffd")
        if len(self.window) > (MOST if whole else 2 * MOST):
            self._cut(text)
        return new

    def rest(self) -> str:
        """What is not released at the end."""
        rest = self._decoded(self.window)[self.released :]
        self.released += len(rest)
        return rest

    def _cut(self, text: str) -> None:
        """Forget the first tokens, where the rest alone has the same text. Its beginning may differ: by a space, or by
        half a character."""
        left = len(text) - self.released
        for kept in range(KEPT, len(self.window)):
            tail = self._decoded(self.window[-kept:])
            if len(tail) >= left + BYTES and text.endswith(tail[BYTES - 1 :]):
                self.window, self.released = self.window[-kept:], len(tail) - left
                return

    def _decoded(self, tokens: list[int]) -> str:
        return self.tokenizer.decode([tokens])[0]
