"""Q-learning in a corridor, with a memory of what was seen."""

import collections
import os
import random

import torch

import windfall as wf


class Corridor:
    def __init__(self):
        self.pos = 0

    def reset(self):
        self.pos = 0
        return self.pos

    def act(self, a):
        self.pos = max(0, min(9, self.pos + (1 if a else -1)))
        return self.pos, float(self.pos == 9), self.pos == 9


class Agent:
    def __init__(self):
        self.q = torch.nn.Linear(10, 2)
        self.target = torch.nn.Linear(10, 2)
        self.target.load_state_dict(self.q.state_dict())
        self.opt = torch.optim.Adam(self.q.parameters(), lr=0.01)
        self.memory = collections.deque(maxlen=500)
        self.eps = 1.0
        self.n = 0

    def choose(self, s):
        if random.random() < self.eps:
            return random.randrange(2)
        return int(self.q(one(s)).argmax())

    def learn(self):
        batch = random.sample(list(self.memory), min(8, len(self.memory)))
        s, a, r, s2, d = zip(*batch, strict=True)
        states, following = torch.stack([one(v) for v in s]), torch.stack([one(v) for v in s2])
        with torch.no_grad():
            y = torch.tensor(r) + 0.95 * self.target(following).max(1).values * (1 - torch.tensor(d).float())
        loss = (self.q(states).gather(1, torch.tensor(a).view(-1, 1)).squeeze(1) - y).pow(2).mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.n += 1
        self.eps = max(0.1, self.eps * 0.97)
        if self.n % 7 == 0:
            self.target.load_state_dict(self.q.state_dict())


def one(s):
    return torch.nn.functional.one_hot(torch.tensor(s), 10).float()


random.seed(0)
torch.manual_seed(0)
env, agent = Corridor(), Agent()
s = env.reset()
for _ in range(10):
    a = random.randrange(2)
    s2, r, d = env.act(a)
    agent.memory.append((s, a, r, s2, d))
    s = env.reset() if d else s2
if p := wf.last():
    k = torch.load(p, weights_only=False)
    agent.q.load_state_dict(k["q"])
    agent.target.load_state_dict(k["target"])
    agent.opt.load_state_dict(k["opt"])
    agent.eps, agent.n = k["eps"], k["n"]
    agent.memory = k["memory"]
    env.pos, s = k["pos"], k["pos"]
    random.setstate(k["py"])
while agent.n < 70:
    a = agent.choose(s)
    s2, r, d = env.act(a)
    agent.memory.append((s, a, r, s2, d))
    s = env.reset() if d else s2
    agent.learn()
    if wf.step():
        os.makedirs("dqn", exist_ok=True)
        f = f"dqn/{agent.n}.pt"
        torch.save(
            {
                "q": agent.q.state_dict(),
                "target": agent.target.state_dict(),
                "opt": agent.opt.state_dict(),
                "eps": agent.eps,
                "n": agent.n,
                "memory": agent.memory,
                "pos": env.pos,
                "py": random.getstate(),
            },
            f,
        )
        wf.backup(f)
