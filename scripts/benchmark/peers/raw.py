"""The job in plain PyTorch: a loop as a researcher would write it by hand."""

import torch

from benchmark.peers.task import Clock, load


def main() -> None:
    task, clock = load(), Clock("torch")
    torch.set_num_threads(task.threads)
    model, total = task.model, len(task.labels)
    weights = [p.detach().clone() for p in model.parameters()]
    for _ in range(task.rounds):
        clock.start()
        sums = [torch.zeros_like(w) for w in weights]
        for client, index in enumerate(task.clients):
            with torch.no_grad():
                for p, w in zip(model.parameters(), weights, strict=True):
                    p.copy_(w)
            task.train(model, client)
            with torch.no_grad():
                for s, p in zip(sums, model.parameters(), strict=True):
                    s.add_(p, alpha=len(index) / total)
        weights = sums
        clock.stop()
    with torch.no_grad():
        for p, w in zip(model.parameters(), weights, strict=True):
            p.copy_(w)
    clock.finish(task.loss(model))


if __name__ == "__main__":
    main()
