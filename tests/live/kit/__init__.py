"""What the live tests are written with: waiting, agents, containers and load. Standard library only."""
