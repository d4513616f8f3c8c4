"""Allocators in other processes: Katalyst's QRM plugin protocol, `resourceplugin.v1alpha1`, from both of its sides."""
