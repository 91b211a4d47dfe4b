// SPDX-License-Identifier: GPL-2.0
/*
 * planted: one bug of each kind, on request, to prove that the debug kernels find it.
 *
 *   insmod planted.ko bug=NAME
 *
 * Built and loaded by selftests/debug/test_detectors.py only; never installed.  The
 * module is no part of the product and all that it does wrong is meant.  What
 * the compiler would see through or optimise away is kept from it by READ_ONCE() of
 * a parameter, OPTIMIZER_HIDE_VAR() or noinline.
 */

#include <linux/delay.h>
#include <linux/kthread.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/rcupdate.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/timer.h>

static char *bug = "none";
module_param(bug, charp, 0444);
MODULE_PARM_DESC(bug, "which bug to commit (default none)");

/* Not constant, so that neither the compiler nor a reader of it can know. */
static int forty = 40;
module_param(forty, int, 0444);
MODULE_PARM_DESC(forty, "the number 40");

#define LEAKED		16
#define OBJECT_BYTES	200
#define RACE_MS		3000
#define TIMER_S		3600

struct object {
	struct timer_list timer;
	int numbers[4];
	char rest[64];
};

static DEFINE_MUTEX(first_lock);
static DEFINE_MUTEX(second_lock);
static DEFINE_SPINLOCK(spin);
static struct object __rcu *shared;
static struct object table;
static unsigned long counter;

static noinline int planted_leak(void)
{
	int i;

	for (i = 0; i < LEAKED; i++) {
		void *lost = kmalloc(OBJECT_BYTES, GFP_KERNEL);

		OPTIMIZER_HIDE_VAR(lost);
	}
	return 0;
}

static noinline int planted_use_after_free(void)
{
	struct object *o = kzalloc(sizeof(*o), GFP_KERNEL);

	if (!o)
		return -ENOMEM;
	kfree(o);
	return READ_ONCE(o->numbers[0]);
}

static noinline int planted_out_of_bounds(void)
{
	char *o = kzalloc(forty, GFP_KERNEL);
	char beyond;

	if (!o)
		return -ENOMEM;
	OPTIMIZER_HIDE_VAR(o);
	beyond = READ_ONCE(o[forty]);
	kfree(o);
	return beyond;
}

/* The order is wrong in one thread already: nothing has to hang for it. */
static noinline int planted_lock_inversion(void)
{
	mutex_lock(&first_lock);
	mutex_lock(&second_lock);
	mutex_unlock(&second_lock);
	mutex_unlock(&first_lock);
	mutex_lock(&second_lock);
	mutex_lock(&first_lock);
	mutex_unlock(&first_lock);
	mutex_unlock(&second_lock);
	return 0;
}

static noinline int planted_sleep_in_atomic(void)
{
	void *o;

	spin_lock(&spin);
	o = kmalloc(OBJECT_BYTES, GFP_KERNEL);
	spin_unlock(&spin);
	kfree(o);
	return 0;
}

static noinline int planted_rcu(void)
{
	return rcu_dereference(shared) ? -EEXIST : 0;
}

static noinline int planted_shift(void)
{
	int shifted = 1 << READ_ONCE(forty);

	return shifted == forty ? -EDOM : 0;
}

static noinline int planted_bounds(void)
{
	table.numbers[READ_ONCE(forty) / 10] = 1;
	return 0;
}

static void expired(struct timer_list *timer)
{
}

static noinline int planted_timer(void)
{
	struct object *o = kzalloc(sizeof(*o), GFP_KERNEL);

	if (!o)
		return -ENOMEM;
	timer_setup(&o->timer, expired, 0);
	mod_timer(&o->timer, jiffies + TIMER_S * HZ);
	kfree(o);
	return 0;
}

static int planted_racer(void *unused)
{
	while (!kthread_should_stop()) {
		counter++;
		cond_resched();
	}
	return 0;
}

static noinline int planted_race(void)
{
	struct task_struct *one = kthread_run(planted_racer, NULL, "racer/1");
	struct task_struct *two = kthread_run(planted_racer, NULL, "racer/2");

	msleep(RACE_MS);
	if (!IS_ERR(one))
		kthread_stop(one);
	if (!IS_ERR(two))
		kthread_stop(two);
	return 0;
}

static const struct {
	const char *name;
	int (*commit)(void);
} bugs[] = {
	{ "leak", planted_leak },
	{ "use_after_free", planted_use_after_free },
	{ "out_of_bounds", planted_out_of_bounds },
	{ "lock_inversion", planted_lock_inversion },
	{ "sleep_in_atomic", planted_sleep_in_atomic },
	{ "rcu", planted_rcu },
	{ "shift", planted_shift },
	{ "bounds", planted_bounds },
	{ "timer", planted_timer },
	{ "race", planted_race },
};

static int __init planted_init(void)
{
	unsigned int i;

	if (!strcmp(bug, "none"))
		return 0;
	for (i = 0; i < ARRAY_SIZE(bugs); i++)
		if (!strcmp(bug, bugs[i].name))
			return min(bugs[i].commit(), 0);
	return -EINVAL;
}

static void __exit planted_exit(void)
{
}

module_init(planted_init);
module_exit(planted_exit);

MODULE_AUTHOR("The airtcp developers");
MODULE_DESCRIPTION("Planted bugs that debug kernels must find");
MODULE_LICENSE("GPL");
