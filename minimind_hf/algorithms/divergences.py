# SPDX-License-Identifier: Apache-2.0
"""How far a student's distribution over the vocabulary is from its teacher's: the losses of distillation.

One number chooses among them, `beta` of Generalized Knowledge Distillation
([Agarwal et al. 2023](https://arxiv.org/abs/2306.13649)), with the meaning that it has in trl:

    beta = 0       KL(teacher || student): forward, the student covers all that the teacher may say
    beta = 1       KL(student || teacher): reverse, the student says nothing that the teacher would not
    in between     beta KL(teacher || m) + (1 - beta) KL(student || m), with m = beta teacher + (1 - beta) student

The last one, the generalised Jensen-Shannon divergence, is bounded by ln 2 and vanishes as beta goes to 0 or 1, in
proportion to the forward and the reverse KL.
"""

import math

import torch
from torch import Tensor


def generalized_jsd(student_logps: Tensor, teacher_logps: Tensor, beta: float) -> Tensor:
    """The divergence of two distributions, exactly, as a sum over all that can be drawn.

    Args:
        student_logps (`Tensor` of shape `(..., V)`): Log-probabilities of the student over the vocabulary.
        teacher_logps (`Tensor` of shape `(..., V)`): Those of the teacher.
        beta (`float`): From 0 to 1; see the module.

    Returns:
        `Tensor` of shape `(...)`, in nats.

    Raises:
        ValueError: If `beta` is outside of 0 to 1, or the shapes differ.
    """
    _check(student_logps, teacher_logps, beta)
    if beta == 0:
        return _kl(teacher_logps, student_logps)
    if beta == 1:
        return _kl(student_logps, teacher_logps)
    mixture = _mixture(student_logps, teacher_logps, beta)
    return beta * _kl(teacher_logps, mixture) + (1 - beta) * _kl(student_logps, mixture)


def generalized_jsd_and_slope(student_logps: Tensor, teacher_logps: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """The same, and its gradient with respect to the logits that the student's log-probabilities come from.

    With `s`, `t` and `m` for the probabilities of student, teacher and mixture, it is `s - t` for `beta = 0`, and
    otherwise `(1 - beta) s (log(s / m) - KL(s || m))`, where for `beta = 1` the teacher takes the place of the mixture
    and the factor is 1. No graph is made.

    Args:
        student_logps, teacher_logps, beta: As for [`generalized_jsd`].

    Returns:
        `(divergence, slope)`: `Tensor` of shape `(...)` and `Tensor` of shape `(..., V)`.
    """
    _check(student_logps, teacher_logps, beta)
    student, teacher = student_logps.exp(), teacher_logps.exp()
    if beta == 0:
        return _expected(teacher, teacher_logps - student_logps), student.sub_(teacher)
    if beta == 1:
        distance = student_logps - teacher_logps
        divergence = _expected(student, distance)
        return divergence, distance.sub_(divergence[..., None]).mul_(student)
    mixture = _mixture(student_logps, teacher_logps, beta)
    of_teacher = _expected(teacher, teacher_logps - mixture)
    distance = student_logps - mixture
    of_student = _expected(student, distance)
    slope = distance.sub_(of_student[..., None]).mul_(student).mul_(1 - beta)
    return beta * of_teacher + (1 - beta) * of_student, slope


def _check(student_logps: Tensor, teacher_logps: Tensor, beta: float) -> None:
    if not 0 <= beta <= 1:
        raise ValueError(f"`beta` must be from 0 (forward KL) to 1 (reverse KL), got {beta}.")
    if student_logps.shape != teacher_logps.shape:
        raise ValueError(
            f"The student's log-probabilities have shape {tuple(student_logps.shape)}, the teacher's "
            f"{tuple(teacher_logps.shape)}. Both must be over the same vocabulary."
        )


def _mixture(student_logps: Tensor, teacher_logps: Tensor, beta: float) -> Tensor:
    return torch.logaddexp(student_logps + math.log1p(-beta), teacher_logps + math.log(beta))


def _kl(logps: Tensor, other_logps: Tensor) -> Tensor:
    return _expected(logps.exp(), logps - other_logps)


def _expected(probabilities: Tensor, values: Tensor) -> Tensor:
    return torch.linalg.vecdot(probabilities, values)
