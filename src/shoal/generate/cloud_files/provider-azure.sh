#!/bin/sh
# Azure: everything is in one resource group, which has the name of the cluster.

create_network() {
  az group create --name "$NAME" --location "$REGION" --output none
  az network nsg create --resource-group "$NAME" --name nodes --output none
  az network nsg rule create --resource-group "$NAME" --nsg-name nodes --name ssh \
    --priority 100 --protocol Tcp --destination-port-ranges 22 \
    --source-address-prefixes "$ADMIN_CIDR" --output none
  az network vnet create --resource-group "$NAME" --name nodes \
    --address-prefixes 10.0.0.0/16 --subnet-name nodes --subnet-prefixes 10.0.0.0/24 \
    --output none
}

create_machine() { # create_machine NUMBER ZONE
  az vm create --resource-group "$NAME" --name "$NAME-$1" --zone "$2" \
    --image "$IMAGE" --size "$MACHINE" --os-disk-size-gb "$DISK_GB" \
    --admin-username "$SSH_USER" --ssh-key-values "$SSH_KEY.pub" \
    --custom-data "$here/cloud-init.yaml" --vnet-name nodes --subnet nodes --nsg nodes \
    --output none
}

print_addresses() { # print_addresses NUMBER ZONE: the private and the public one
  network='[0].virtualMachine.network'
  az vm list-ip-addresses --resource-group "$NAME" --name "$NAME-$1" --output tsv --query \
    "$network.{private:privateIpAddresses[0],public:publicIpAddresses[0].ipAddress}"
}

delete_everything() {
  az group delete --name "$NAME" --yes
}
