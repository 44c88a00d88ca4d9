"""Each row of the page about failures has a test of what it promises."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
WANDB, LIMITS = "tracking/test_wandb_upload.py", "runtime/test_limits.py"
PROCESSES, MEETING = "distributed/test_processes.py", "distributed/test_meeting.py"
SLURM, QUEUE = "cli/test_slurm.py", "runtime/test_slurm_queue.py"

TESTS = {
    "W&B's server is dead or unreachable": (
        WANDB,
        "test_a_server_that_dies_costs_nothing_and_the_printed_command_completes_the_record",
    ),
    "W&B answers with 401, 429 or 500, or not at all": (
        WANDB,
        "test_a_server_that_refuses_costs_nothing",
    ),
    "W&B's server is slow": (WANDB, "test_a_server_that_is_late_costs_nothing"),
    "W&B's server is dead in a sweep": (
        WANDB,
        "test_a_dead_server_is_found_once_in_a_sweep_and_one_command_completes_all",
    ),
    "a resumed run was deleted on W&B's server": (
        WANDB,
        "test_a_resumed_run_that_was_deleted_on_the_server_is_one_line_with_a_command_that_works",
    ),
    "the same run is started a second time, in another folder or on another machine": (
        WANDB,
        "test_a_second_start_in_another_folder_is_one_line_and_its_record_replaces_the_first",
    ),
    "the process is killed (kill -9, power loss)": (
        "runtime/test_kill_and_resume.py",
        "test_a_killed_run_ends_as_if_it_had_not_been",
    ),
    "SIGTERM or SIGUSR1, as from `scancel`": (LIMITS, "test_a_signal_ends_a_sweep_with_its_table"),
    "a limit of time (`limits.minutes`)": (
        LIMITS,
        "test_a_sweep_whose_time_is_up_names_what_has_not_run",
    ),
    "a job of a sweep is cancelled with `scancel`": (
        SLURM,
        "test_a_cancelled_job_is_marked_and_the_printed_command_finishes_it",
    ),
    "a job of a sweep is killed, for its memory for example": (
        SLURM,
        "test_a_killed_job_and_one_that_never_began_are_named",
    ),
    "a node of SLURM or a worker of Ray dies": (
        SLURM,
        "test_a_job_whose_node_dies_goes_on_at_another",
    ),
    "a worker of Ray dies more than three times (`hydra.launcher.ray.remote.max_retries`)": (
        "cli/test_ray.py",
        "test_a_job_whose_worker_dies_twice_is_named_and_the_other_ends",
    ),
    "a job reaches SLURM's limit of time": (
        SLURM,
        "test_a_job_at_its_limit_of_time_is_queued_again",
    ),
    "Ctrl-C while the command waits for SLURM": (
        SLURM,
        "test_a_job_that_waits_for_ever_says_why_and_ctrl_c_leaves_it",
    ),
    "the command that waits for SLURM is killed": (
        SLURM,
        "test_the_jobs_of_a_sweep_are_not_queued_twice",
    ),
    "a sweep is started a second time": (
        "cli/test_resume.py",
        "test_a_second_start_of_a_sweep_is_refused_and_the_first_ends_well",
    ),
    "SLURM does not answer": (
        QUEUE,
        "test_a_queue_that_does_not_answer_is_one_line_until_it_does",
    ),
    "SLURM holds jobs back": (QUEUE, "test_each_reason_is_one_line"),
    "a process of a run dies": (PROCESSES, "test_a_rank_that_dies_ends_the_run_with_its_number"),
    "a process that `torchrun` or `srun` has started dies": (
        PROCESSES,
        "test_a_rank_of_torchrun_that_is_killed_ends_the_others_in_one_line",
    ),
    "the first machine of `srun` cannot be found": (
        MEETING,
        "test_a_name_that_is_unknown_is_one_line",
    ),
    "a machine of `srun` does not come": (MEETING, "test_ranks_that_do_not_come_are_named"),
    "the disk is full": ("faults/test_full_disks.py", "test_files_that_cannot_grow"),
    "the run's folder is deleted or moved": (
        "faults/test_lost_folders.py",
        "test_what_follows_is_written_to_a_new_folder",
    ),
}


def test_each_row_has_a_test() -> None:
    page = (ROOT / "docs/concepts/failures.md").read_text()
    rows = re.findall(r"^\| (.*?) \|", page, flags=re.M)[1:]
    assert rows == list(TESTS)
    for file, name in TESTS.values():
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(), name
