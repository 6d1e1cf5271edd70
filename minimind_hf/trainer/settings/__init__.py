# SPDX-License-Identifier: Apache-2.0
"""trainer/settings."""
