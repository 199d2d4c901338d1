"""What `elbowroom profile gpu` is shown besides the benchmarks: a convolution and a linear layer of PyTorch, fifty times."""

import torch

torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 32, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(32 * 62 * 62, 10)
).cuda()
images = torch.randn(64, 3, 64, 64, device="cuda")
with torch.no_grad():
    for _ in range(50):
        answer = model(images)
torch.cuda.synchronize()
print(float(answer.sum()))
