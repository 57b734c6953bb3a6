"""The handlers of a small cluster for each test that names a scene."""

from tests.scheduler.extender.scene import scene as scene
