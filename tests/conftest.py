"""What holds for all tests."""

import hypothesis

# Hypothesis looks at a clock, too, unless it is told not to.
hypothesis.settings.register_profile("nearfar", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("nearfar")
