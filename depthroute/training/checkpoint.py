"""Checkpoints: everything a run needs to go on, written in the background. All use of Orbax is in this file."""

from pathlib import Path

import orbax.checkpoint as ocp

from depthroute.training.state import TrainState


class Checkpoints:
    """The checkpoints of one run folder, the newest `keep` of them. Read-only, nothing in the folder is touched."""

    def __init__(self, folder: Path, keep: int, read_only: bool = False):
        options = ocp.CheckpointManagerOptions(
            max_to_keep=None if read_only else keep, cleanup_tmp_directories=not read_only, read_only=read_only
        )
        self._manager = ocp.CheckpointManager(folder.absolute(), options=options)

    def latest_step(self) -> int | None:
        """The step of the newest complete checkpoint, or None."""
        return self._manager.latest_step()

    def restore(self, abstract: TrainState) -> TrainState:
        """The newest checkpoint, placed as `abstract` says. Raises ValueError if shapes or names differ."""
        step = self._manager.latest_step()
        return self._manager.restore(step, args=ocp.args.StandardRestore(abstract))

    def save(self, step: int, state: TrainState) -> None:
        """Copies the state and writes it in the background; a save still under way is waited for first."""
        if step != self._manager.latest_step():
            self._manager.save(step, args=ocp.args.StandardSave(state))

    def close(self) -> None:
        """Waits until everything is on disk; raises what a background write raised."""
        self._manager.wait_until_finished()
        self._manager.close()
