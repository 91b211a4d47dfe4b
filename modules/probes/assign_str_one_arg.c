// SPDX-License-Identifier: GPL-2.0
// what: __assign_str(dst), 6.10
// absent: requires 2 arguments|too few arguments provided
#include <linux/tracepoint.h>
#include <trace/stages/stage6_event_callback.h>

#define AS_TEXT(...)	#__VA_ARGS__
#define TEXT_OF(...)	AS_TEXT(__VA_ARGS__)

static const char airtcp_probe[] __maybe_unused = TEXT_OF(__assign_str(name));
