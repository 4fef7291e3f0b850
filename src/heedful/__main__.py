"""`python -m heedful` is `heedful`; torchrun starts it that way."""

from heedful.commands.main import main

main()
