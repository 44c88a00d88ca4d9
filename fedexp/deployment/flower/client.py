"""Flower's ClientApp of an app."""

import logging
from collections.abc import Callable
from pathlib import Path

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedexp.deployment.flower.app import App, read_app
from fedexp.deployment.flower.letters import RefusedError, check, pack, refusal
from fedexp.deployment.flower.node import Node
from fedexp.deployment.flower.own_code import make_importable
from fedexp.deployment.flower.own_config import node_config
from fedexp.errors import InputError

LOGGER = logging.getLogger(__name__)

Answer = Callable[[Node, RecordDict], object]


def client_app(folder: Path) -> ClientApp:
    """The ClientApp of the app in this module folder."""
    make_importable(folder)
    app, made = read_app(folder), ClientApp()
    for register, answer in (
        (made.train(), Node.train),
        (made.evaluate(), Node.evaluate),
        (made.query("probe"), Node.probe),
        (made.query("introduce"), lambda node, content: node.introduce()),
        (made.query("classes"), lambda node, content: node.class_counts()),
    ):
        register(_handler(app, answer))
    return made


def _handler(app: App, answer: Answer) -> Callable[[Message, Context], Message]:
    """Make the function that answers a message; the reply to a refused message is the reason."""

    def handle(message: Message, context: Context) -> Message:
        try:
            check(message.content, app.version)
            node = Node(app, node_config(context.node_config, app.own_data))
            reply = pack(app.version, answer(node, message.content))
        except (InputError, RefusedError) as error:
            LOGGER.warning("%s", error)
            reply = refusal(app.version, str(error))
        return Message(reply, reply_to=message)

    return handle
